ARGS="--num-layers 24 --hidden-size 1024 --num-attention-heads 16"
source ./launch.sh
