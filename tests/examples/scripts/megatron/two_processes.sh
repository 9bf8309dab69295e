#!/bin/bash
# by hand: one process cannot be split
ARGS="--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 32 --tensor-model-parallel-size 1"
if [ -n "$SLURM_JOB_ID" ]; then
    torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py $ARGS
else
    torchrun --nproc-per-node 1 --nnodes 1 pretrain_gpt.py $ARGS
fi
