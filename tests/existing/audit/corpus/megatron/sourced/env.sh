# What every run of ours needs.
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_IB_TIMEOUT=22
NPROC=8
NNODES=${NNODES:-4}
