"""langchain-openai: a chat, its stream, a batch, and embeddings of whole texts (its splitter fetches files)."""

import os

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

url, model = os.environ["OCTAVO_URL"], os.environ["OCTAVO_MODEL"]
chat = ChatOpenAI(base_url=url, model=model, temperature=0, max_tokens=12)
asked = [SystemMessage("Be brief."), HumanMessage("Name a colour.")]
answer = chat.invoke(asked)
assert answer.text and answer.usage_metadata["output_tokens"] > 0
assert "".join(piece.text for piece in chat.stream(asked)) == answer.text
assert [each.text for each in chat.batch([asked, asked])] == [answer.text] * 2
embeddings = OpenAIEmbeddings(base_url=url, model=model, check_embedding_ctx_length=False)
vectors = embeddings.embed_documents(["a cat", "a dog", "the law of torts"])
assert len(vectors) == 3 and embeddings.embed_query("a cat") == vectors[0]
