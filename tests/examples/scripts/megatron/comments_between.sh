#!/bin/bash
ARGS=(
  # the model
  --num-layers 4 --hidden-size 1024 --num-attention-heads 16
  --seq-length 1024 --max-position-embeddings 1024 # long enough
  # the layout
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1
  --micro-batch-size 2 --global-batch-size 32
)
torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py "${ARGS[@]}" --lr 1e-4
