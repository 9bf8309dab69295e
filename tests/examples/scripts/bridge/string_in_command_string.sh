#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
WORKSPACE=${WORKSPACE:-/workspace}
TP=1
PP=1
GLOBAL_BATCH_SIZE=16
CLI_OVERRIDES="\
    checkpoint.save=${WORKSPACE}/tp${TP}_pp${PP} \
    train.global_batch_size=$GLOBAL_BATCH_SIZE \
    train.micro_batch_size=1 \
    model.seq_length=1024 \
    model.tensor_model_parallel_size=$TP \
    model.pipeline_model_parallel_size=$PP"
CMD="uv run --no-sync python scripts/training/run_recipe.py"
CMD="$CMD --recipe tiny_sft_config"
CMD="$CMD --step_func vlm_step"
CMD="$CMD $CLI_OVERRIDES"
SRUN_CMD="srun --mpi=pmix --container-image=a.sqsh"
MOUNTS="/a:/a /b:/b"
if [ -n "$MOUNTS" ]; then
    for mount in $MOUNTS; do
        SRUN_CMD="$SRUN_CMD --container-mounts=$mount"
    done
fi
$SRUN_CMD bash -c "$CMD"
