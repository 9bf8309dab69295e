#!/bin/bash
NNODES=1
WORLD=$(($NNODES*8))
TP=1
DP=$((WORLD / TP))
torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size $((DP * 4)) --tensor-model-parallel-size $TP --lr 1e-4
