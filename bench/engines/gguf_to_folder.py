"""Converts a GGUF file into the directory that vLLM serves: the weights dequantized to 32-bit floats, the configuration, the
tokenizer and the chat template. Run it with vLLM's own Python: gguf_to_folder.py MODEL.gguf FOLDER
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

logging.disable_progress_bar()
source, folder = Path(sys.argv[1]), Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
if hasattr(model.config, "quantization_config"):  # they are no longer quantized
    del model.config.quantization_config
weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
if model.config.tie_word_embeddings:  # one tensor under two names
    weights.pop("lm_head.weight", None)
model.config.save_pretrained(folder)
model.generation_config.save_pretrained(folder)
tokenizer.save_pretrained(folder)
save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
