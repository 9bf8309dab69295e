#!/bin/bash
export NGPU=${NGPU:-"8"}
export MODULE=${MODULE:-"llama3"}
export CONFIG=${CONFIG:-"llama3_8b"}
bash run_train.sh --training.local_batch_size 1 --training.global_batch_size 16 --training.seq_len 1024 --parallelism.tensor_parallel_degree 1 --parallelism.pipeline_parallel_degree 1 --metrics.log_freq 5 "$@"
