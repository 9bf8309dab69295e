#!/bin/bash
cat > job.sh <<'END'
#!/bin/bash
torchrun --nproc-per-node=8 --nnodes=1 run_recipe.py --recipe tiny_pretrain_config train.global_batch_size=16 train.micro_batch_size=1 model.seq_length=1024 model.tensor_model_parallel_size=1 model.pipeline_model_parallel_size=1 optimizer.lr=1e-4 logger.log_interval=5
END
sbatch job.sh
