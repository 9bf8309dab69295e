model.num_layers=32
*a=4096
torchrun pretrain_gpt.py --num-layers 32
