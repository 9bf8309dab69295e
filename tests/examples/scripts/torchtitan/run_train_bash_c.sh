#!/bin/bash
OVERRIDES="--training.local_batch_size 1 --training.global_batch_size 16 --training.seq_len 1024 --parallelism.tensor_parallel_degree 1 --parallelism.pipeline_parallel_degree 1 --metrics.log_freq 5"
bash -c "NGPU=8 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh $OVERRIDES"
