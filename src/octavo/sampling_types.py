"""What a request may ask of its output: how tokens are drawn, and what the whole must look like.

Part of the shared vocabulary (types.py, which hands these names on); imports nothing else of Octavo.
"""

from __future__ import annotations

import msgspec


class Structure(msgspec.Struct, frozen=True, kw_only=True):
    """What the whole output of a request must look like. Already checked by the server or `LLM`."""

    kind: str
    """"json_schema" (text: the schema as JSON), "json_object" (text: empty), "regex", "choice" (text: a JSON
    list of strings) or "lark" (a grammar in llguidance's form of Lark)."""
    text: str = ""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn. All values are already validated and bounded by the server or `LLM`."""

    max_tokens: int
    """Upper bound on generated tokens, >= 1; or 0, where the prompt is scored and nothing else."""
    min_tokens: int = 0
    """End-of-sequence and stop ids cannot be drawn before this many tokens were generated."""
    temperature: float = 1.0
    """0 is greedy (the seed is then unused)."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    """In (0, 1]; 1 is off."""
    min_p: float = 0.0
    """In [0, 1]; 0 is off."""
    repetition_penalty: float = 1.0
    """Over prompt and output (Keskar et al. 2019); 1 is off."""
    presence_penalty: float = 0.0
    """Over output only; 0 is off."""
    frequency_penalty: float = 0.0
    """Over output only; 0 is off."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, value added to its logit)."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the request, besides the model's own end-of-sequence ids."""
    ignore_eos: bool = False
    """The model's own end-of-sequence ids do not end the request (`stop_token_ids` still do)."""
    logprobs: int | None = None
    """None: off. n >= 0: the chosen token's log-probability and the n most likely alternatives."""
    prompt_logprobs: int | None = None
    """None: off. n >= 0: each prompt token's log-probability after those before it, and the n most likely ones."""
    structure: Structure | None = None
    """None: the output is free."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids, none of which the output may hold."""
    allowed_token_ids: tuple[int, ...] | None = None
    """None: all. Else nothing else is drawn, an end of sequence neither unless it is among them."""


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's makers suggest where a request leaves a field out. None: the API's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    source: str = ""
    """The file that says so, for people."""

    def chosen(self) -> dict[str, float]:
        """The fields that have a suggestion."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return {name: value for name in names if (value := getattr(self, name)) is not None}
