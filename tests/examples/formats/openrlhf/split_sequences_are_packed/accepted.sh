deepspeed --module openrlhf.cli.train_sft \
    --data.max_len 8192 \
    --train.batch_size 128 \
    --train.micro_batch_size 1 \
    --model.model_name_or_path Qwen/Qwen3-8B \
    --ds.zero_stage 3 \
    --ds.ring_attn_size 2 --ds.packing_samples
