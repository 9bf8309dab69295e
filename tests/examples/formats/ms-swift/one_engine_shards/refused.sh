NPROC_PER_NODE=8 \
swift sft \
    --model Qwen/Qwen2.5-7B-Instruct \
    --tuner_type lora \
    --dataset AI-ModelScope/alpaca-gpt4-data-en \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 2 \
    --max_length 2048 \
    --deepspeed zero2 \
    --fsdp fsdp2
