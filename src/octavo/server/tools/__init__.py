"""Tool calls and reasoning: what a request may ask, how a template is told, and how an answer's text is taken apart."""
