#!/bin/bash
ARGS=(--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 32)
if [ -z "$WANDB_API_KEY" ]; then
    torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py "${ARGS[@]}" --tensor-model-parallel-size 1
else
    torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py "${ARGS[@]}" --tensor-model-parallel-size=1 --wandb-project p
fi
