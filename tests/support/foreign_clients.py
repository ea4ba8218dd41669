"""LangChain's and Instructor's clients, asked what `test_foreign_clients.py` wants to know.

It runs in an environment of its own (`make test-clients`), without our libraries:
`python foreign_clients.py URL KEY MODEL` prints what each has got as JSON.
"""

import asyncio
import json
import sys
from typing import Any

import instructor
import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Tide(BaseModel):
    port: str
    metres: float


@tool
def tide_at(port: str) -> str:
    """Look up the tide at a port."""
    return f"high at {port}"


def with_langchain(url: str, key: str, model: str) -> dict[str, Any]:
    made: dict[str, Any] = {"base_url": url, "api_key": key, "model": model}
    chat = ChatOpenAI(**made)
    prompt = ChatPromptTemplate.from_messages([("system", "Be short."), ("user", "{question}")])
    chain = prompt | chat | StrOutputParser()
    told: dict[str, Any] = {"chain": chain.invoke({"question": "What is a tide?"})}
    told["streamed"] = "".join(chain.stream({"question": "What is a tide, in pieces?"}))
    told["batch"] = chain.batch([{"question": "one"}, {"question": "two"}])

    async def ask() -> str:
        return (await chat.ainvoke("And asynchronously?")).text

    told["async"] = asyncio.run(ask())

    asked = HumanMessage("Use the tool.")
    with_tools = chat.bind_tools([tide_at])
    answer = with_tools.invoke([asked])
    told["calls"] = [(each["name"], each["args"]) for each in answer.tool_calls]
    results = [
        ToolMessage(tide_at.invoke(each["args"]), tool_call_id=each["id"])
        for each in answer.tool_calls
    ]
    told["after"] = with_tools.invoke([asked, answer, *results]).text

    fits = chat.with_structured_output(Tide).invoke("As an object.")
    told["structured"] = fits.model_dump()

    vectors = OpenAIEmbeddings(**made, check_embedding_ctx_length=False)
    told["vectors"] = [len(each) for each in vectors.embed_documents(["high", "low"])]
    return told


def with_instructor(url: str, key: str, model: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON):
        client = instructor.from_openai(openai.OpenAI(base_url=url, api_key=key), mode=mode)
        messages: Any = [{"role": "user", "content": f"The tide at Brest, by {mode.value}."}]
        fits = client.chat.completions.create(
            model=model, response_model=Tide, messages=messages, max_retries=1
        )
        told[mode.name] = fits.model_dump()
    return told


if __name__ == "__main__":
    given = sys.argv[1:4]
    print(json.dumps({"langchain": with_langchain(*given), "instructor": with_instructor(*given)}))
