#!/bin/bash
cat > job.sh <<EOF
#!/bin/bash
torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 \\
    --seq-length 1024 --max-position-embeddings 1024 \\
    --micro-batch-size 2 --global-batch-size 32 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1
EOF
sbatch job.sh
