#!/bin/bash
sbatch <<END
#!/bin/bash
#SBATCH --nodes=1
torchrun --nproc_per_node=8 --nnodes=1 -m torchtitan.train --module llama3 --config llama3_8b --training.local_batch_size 1 --training.global_batch_size 16 --training.seq_len 1024 --parallelism.tensor_parallel_degree 1 --parallelism.pipeline_parallel_degree 1 --metrics.log_freq 5
END
