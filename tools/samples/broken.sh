#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --sequence-parallel \
  --num-layers 30 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm \
  --untie-embeddings-and-output-weights --disable-bias-linear --vocab-size 128256 \
  --position-embedding-type rope --seq-length 4096 --max-position-embeddings 4096 \
  --micro-batch-size 1 --global-batch-size 63 --bf16 --use-distributed-optimizer
