#!/bin/bash
#SBATCH --ntasks=1
#SBATCH --nodes=1
#SBATCH --gpus-per-task=8
dcgmi=0
srun torchrun --nnodes 1 --nproc_per_node 8 --rdzv_id 101 --rdzv_backend c10d --rdzv_endpoint "localhost:29500" -m torchtitan.train --module llama3 --config llama3_8b --training.local_batch_size 1 --training.global_batch_size 16 --training.seq_len 1024 --parallelism.tensor_parallel_degree 1 --parallelism.pipeline_parallel_degree 1 --metrics.log_freq 5
