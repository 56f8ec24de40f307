"""Makes the models of the CPU environment: `make_models.py GGUF OUT`.

OUT/smollm2 is the real 135M model, turned from GGUF into what SGLang loads. OUT/tiny has the same tokenizer and two
small layers of random weights: fast, and without sense.
"""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "plugin"))

import anabranch_torch_cpu  # type: ignore[import-not-found]

anabranch_torch_cpu.prepare()

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM


def smollm2(gguf: Path) -> tuple[Any, Any]:
    """The tokenizer and the model in a GGUF file; the weights in full precision."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    quantized = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = quantized.config
    for stale in ("quantization_config", "_name_or_path"):
        if hasattr(config, stale):
            delattr(config, stale)
    model = type(quantized)(config).to(torch.float32)
    model.load_state_dict(quantized.state_dict())
    if config.tie_word_embeddings:
        model.tie_weights()
    return tokenizer, model


def tiny(tokenizer: Any) -> Any:
    """A random model for the tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    return LlamaForCausalLM(config).to(torch.float32)


def save(out: Path, tokenizer: Any, model: Any) -> None:
    """Write them where they belong only once they are whole."""
    partial = out.with_name(out.name + ".partial")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    os.replace(partial, out)


def main(gguf: Path, out: Path) -> None:
    """Make what is not there yet."""
    if (out / "smollm2").exists():
        tokenizer = AutoTokenizer.from_pretrained(out / "smollm2")
    else:
        tokenizer, model = smollm2(gguf)
        save(out / "smollm2", tokenizer, model)
    if not (out / "tiny").exists():
        save(out / "tiny", tokenizer, tiny(tokenizer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
