#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
MODEL_ARGS=(
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --disable-bias-linear
    --normalization RMSNorm
    --position-embedding-type rope
    --max-position-embeddings 4096
    --seq-length 4096
    --micro-batch-size 1
    --global-batch-size 64
    --bf16
    --untie-embeddings-and-output-weights
    --mamba-num-heads 128
    --mamba-head-dim 64
    --mamba-num-groups 8
    --mamba-state-dim 128
    --squared-relu
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 2
    --hybrid-layer-pattern 'M-M*-|M-M*-M'
)
torchrun --nproc_per_node 8 --nnodes 2 pretrain_hybrid.py "${MODEL_ARGS[@]}"
