NPROC_PER_NODE=8 \
megatron sft \
    --model Qwen/Qwen2.5-7B-Instruct \
    --dataset 'AI-ModelScope/alpaca-gpt4-data-en#500' \
    --tensor_model_parallel_size 2 \
    --sequence_parallel true \
    --per_device_train_batch_size 2 \
    --global_batch_size 16 \
    --recompute_granularity full \
    --recompute_method uniform \
    --recompute_num_layers 1 \
    --packing true \
    --max_length 8192
