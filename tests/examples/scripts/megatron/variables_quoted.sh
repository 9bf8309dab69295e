#!/bin/bash
TP="1"
PP='1'
torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 32 --tensor-model-parallel-size "$TP" --pipeline-model-parallel-size "${PP}"
