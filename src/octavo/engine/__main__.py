"""`python -m octavo.engine --fd N`: what keeps the process from being left over comes first, then the slow imports."""

from __future__ import annotations

from octavo.engine import guard


def main() -> int:
    """Runs the engine with the executor of this machine."""
    given = guard.begin()
    from octavo.engine.process import serve
    from octavo.execution.factory import build_executor

    return serve(given, build_executor)


if __name__ == "__main__":
    guard.end(main())
