"""Conversion between GGUF files and safetensors directories: tensors, configuration, tokeniser and chat template."""
