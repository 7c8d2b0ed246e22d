"""What `response_model` and `schema` of `LLM`'s calls ask for: a structure for the engine, and how its text is read.

A model class is anything that has `model_json_schema` and `model_validate_json`, as pydantic's have; pydantic itself is
not needed. Owns no state; off: neither keyword.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.llm_errors import StructureError
from octavo.types import Structure

if TYPE_CHECKING:
    from octavo.llm_answers import Completion

_WORKS = "{'type': 'object', 'properties': {'name': {'type': 'string'}}, 'required': ['name']}"


@dataclass(frozen=True)
class Form:
    """See the module."""

    structure: Structure
    validate: Callable[[str], Any]
    """Raises ValueError for text that has no such form."""

    def read(self, completion: Completion) -> Any:
        """The answer as what was asked for. Raises StructureError."""
        if completion.finish_reason == "length":
            raise StructureError(
                f"the answer was cut after {len(completion.tokens)} tokens, before it was complete; a higher "
                "max_tokens would work",
                completion,
            )
        try:
            return self.validate(completion.text)
        except ValueError as error:
            raise StructureError(
                f"the answer does not have the form that was asked for: {error}", completion
            ) from error


def form_of(response_model: Any, schema: Any) -> Form | None:
    """None where neither is given. Raises TypeError and ValueError."""
    if response_model is None and schema is None:
        return None
    if response_model is not None and schema is not None:
        raise ValueError("response_model and schema are both given, and each says what the answer is; one would work")
    if schema is not None:
        return Form(_structure(schema, "schema"), json.loads)
    describe = getattr(response_model, "model_json_schema", None)
    validate = getattr(response_model, "model_validate_json", None)
    if not isinstance(response_model, type) or not callable(describe) or not callable(validate):
        kind = response_model if isinstance(response_model, type) else type(response_model)
        raise TypeError(f"response_model is {kind.__name__}; a class that derives from pydantic.BaseModel would work")
    return Form(_structure(describe(), "the schema of response_model"), validate)


def _structure(schema: Any, what: str) -> Structure:
    """A schema as an object or as JSON text."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise ValueError(f"{what} is text that is not JSON ({error}); {_WORKS} would work") from None
    if not isinstance(schema, (Mapping, bool)):
        raise TypeError(f"{what} is a {type(schema).__name__}; a dict such as {_WORKS} would work")
    try:
        text = json.dumps(schema if isinstance(schema, bool) else dict(schema), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} cannot be written as JSON ({error}); {_WORKS} would work") from None
    return Structure(kind="json_schema", text=text)
