MODEL_NAME=thirteen
MODEL_ARGS="
  --num-layers 40
  --hidden-size 5120
  --ffn-hidden-size 13824
  --num-attention-heads 40
  --max-position-embeddings 4096
  --position-embedding-type rope
  --normalization RMSNorm
  --norm-epsilon 1e-5
  --swiglu
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --attention-dropout 0 --hidden-dropout 0
  --vocab-size 32000 --make-vocab-size-divisible-by 1
"
