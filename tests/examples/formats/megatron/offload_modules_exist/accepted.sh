#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_CPU_OFFLOAD_V1=1
MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --swiglu
    --disable-bias-linear
    --normalization RMSNorm
    --position-embedding-type rope
    --max-position-embeddings 4096
    --seq-length 4096
    --micro-batch-size 1
    --global-batch-size 64
    --bf16
    --untie-embeddings-and-output-weights
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 2
    --fine-grained-activation-offloading
    --offload-modules core_attn attn_proj
)
torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py "${MODEL_ARGS[@]}"
