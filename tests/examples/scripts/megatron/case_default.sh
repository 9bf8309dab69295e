#!/bin/bash
SIZE=${SIZE:-small}
case $SIZE in
    small) MODEL="--num-layers 4 --hidden-size 1024 --num-attention-heads 16"; TP=1 ;;
    *) echo "no $SIZE"; exit 1 ;;
esac
torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py $MODEL --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 32 --tensor-model-parallel-size $TP
