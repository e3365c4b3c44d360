"""The model card of an exported folder."""

from collections.abc import Mapping

from hyla_lm.export.loaded_model import LoadedModel
from hyla_lm.run.folder import read_summary

CARD = """\
# {name}

A decoder-only language model with {attention} attention, trained with hyla_lm for {step:,} steps:
{layers} layers, width {width}, {heads} heads of {head}, {parameters:,} parameters, a vocabulary of
{vocabulary:,} pieces and rows of {length} tokens.

{metrics}

## Use

With transformers, which runs the two Python files of this folder:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(".", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(".", trust_remote_code=True)
ids = tokenizer("Return the", return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, max_new_tokens=20)[0], skip_special_tokens=True))
```

With torch alone, in this folder: `from modeling_hyla import load; logits = load(".")(ids)`.
With hyla_lm, in JAX: `import hyla_lm; print(hyla_lm.load(".").generate("Return the", 20))`.

A text begins with the token {bos}, which the tokenizer adds. There is no key-value cache in
PyTorch: each new token reads the whole row again.
"""


def model_card(model: LoadedModel, parameters: int, validation: Mapping[str, float]) -> str:
    """What the model is, how good it is and how to load it, in Markdown."""
    c, tokenizer = model.config, model.tokenizer
    rows = [f"| {name} | {value:.4f} |" for name, value in sorted(validation.items())]
    table = ["| metric of the validation rows | value |", "| --- | --- |", *rows]
    return CARD.format(
        name=f"A {' + '.join(c.pattern)} language model",
        attention=" and ".join(dict.fromkeys(c.pattern)),
        step=model.step,
        layers=c.num_layers,
        width=c.model_dim,
        heads=c.num_heads,
        head=c.head_dim,
        parameters=parameters,
        vocabulary=tokenizer.vocab_size,
        length=model.sequence_length,
        metrics="\n".join(table) if rows else "The run has no summary of this step.",
        bos=tokenizer.processor.IdToPiece(tokenizer.bos),
    )


def validation_of(workdir: str, step: int) -> dict[str, float]:
    """The validation metrics in a run's summary.json; empty if it has none of this step."""
    summary = read_summary(workdir)
    return summary["validation"] if summary.get("step") == step else {}
