"""The backend "horocache" of torch.distributed, and DDP's communication hook."""
