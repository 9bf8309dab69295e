#!/bin/bash
NGPU=${NGPU:-"8"}
TP=1
LOG_RANK=${LOG_RANK:-0}
PYTORCH_ALLOC_CONF="expandable_segments:True" \
torchrun --nproc_per_node=${NGPU} --local-ranks-filter ${LOG_RANK} --role rank --tee 3 \
    -m torchtitan.train --module llama3 --config llama3_8b --training.local_batch_size 1 --training.global_batch_size 16 --training.seq_len 1024 --parallelism.tensor_parallel_degree $TP
