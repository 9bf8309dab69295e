#!/bin/bash
SIZE=small
if [ "$SIZE" = small ]; then
    MODEL="--num-layers 4 --hidden-size 1024 --num-attention-heads 16"
    TP=1
else
    MODEL="--num-layers 8 --hidden-size 2048 --num-attention-heads 16"
    TP=2
fi
torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py $MODEL --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 32 --tensor-model-parallel-size $TP
