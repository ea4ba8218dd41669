"""Calls by LangChain's and Instructor's clients, for `test_foreign_clients.py`.

It runs in an environment of its own (`make test-clients`), without our libraries:
`python foreign_clients.py URL KEY MODEL` prints the results of each client as JSON.
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


def call_by_langchain(url: str, key: str, model: str) -> dict[str, Any]:
    options: dict[str, Any] = {"base_url": url, "api_key": key, "model": model}
    chat = ChatOpenAI(**options)
    prompt = ChatPromptTemplate.from_messages([("system", "Be short."), ("user", "{question}")])
    chain = prompt | chat | StrOutputParser()
    results: dict[str, Any] = {"chain": chain.invoke({"question": "What is a tide?"})}
    results["streamed"] = "".join(chain.stream({"question": "What is a tide, in pieces?"}))
    results["batch"] = chain.batch([{"question": "one"}, {"question": "two"}])

    async def ask() -> str:
        return (await chat.ainvoke("And asynchronously?")).text

    results["async"] = asyncio.run(ask())

    question = HumanMessage("Use the tool.")
    with_tools = chat.bind_tools([tide_at])
    answer = with_tools.invoke([question])
    results["calls"] = [(each["name"], each["args"]) for each in answer.tool_calls]
    tool_messages = [
        ToolMessage(tide_at.invoke(each["args"]), tool_call_id=each["id"])
        for each in answer.tool_calls
    ]
    results["after"] = with_tools.invoke([question, answer, *tool_messages]).text

    tide = chat.with_structured_output(Tide).invoke("As an object.")
    results["structured"] = tide.model_dump()

    vectors = OpenAIEmbeddings(**options, check_embedding_ctx_length=False)
    results["vectors"] = [len(each) for each in vectors.embed_documents(["high", "low"])]
    return results


def call_by_instructor(url: str, key: str, model: str) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON):
        client = instructor.from_openai(openai.OpenAI(base_url=url, api_key=key), mode=mode)
        messages: Any = [{"role": "user", "content": f"The tide at Brest, by {mode.value}."}]
        tide = client.chat.completions.create(
            model=model, response_model=Tide, messages=messages, max_retries=1
        )
        results[mode.name] = tide.model_dump()
    return results


if __name__ == "__main__":
    arguments = sys.argv[1:4]
    print(
        json.dumps(
            {
                "langchain": call_by_langchain(*arguments),
                "instructor": call_by_instructor(*arguments),
            }
        )
    )
