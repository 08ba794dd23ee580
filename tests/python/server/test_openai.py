"""openai-python as a client of `sluice serve`."""
import re
import typing

import pydantic
import pytest
from conftest import ROOT, serve

openai = pytest.importorskip("openai")

MODEL = "sluice-16e-tiny"
QUESTION = [{"role": "user", "content": "What is 417 + 268?"}]
ADD = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}


@pytest.fixture(scope="module")
def url():
    with serve() as address:
        yield address


def test_the_program_of_the_readme(url, run_python):
    program = next(p for p in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL) if "OpenAI" in p)
    here = program.replace("http://127.0.0.1:8000", url)
    assert here != program
    assert "685" in run_python(here)


@pytest.fixture(scope="module")
def client(url):
    return openai.OpenAI(base_url=url + "/v1", api_key="none")


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, logprobs=True, top_logprobs=2)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("685", "stop")
    assert [t.token for t in choice.logprobs.content] == ["6", "8", "5"]
    assert all(len(t.top_logprobs) == 2 for t in choice.logprobs.content)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream(client):
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0) as stream:
        said = "".join(e.delta for e in stream if e.type == "content.delta")
        assert said == "685" == stream.get_final_completion().choices[0].message.content


def test_completion(client):
    answer = client.completions.create(model=MODEL, prompt=["ab", "cd"], max_tokens=3, temperature=0, logprobs=1)
    assert [c.index for c in answer.choices] == [0, 1]
    assert "".join(answer.choices[1].logprobs.tokens) == answer.choices[1].text


def test_tools(client):
    choice = {"type": "function", "function": {"name": "add"}}
    said = client.chat.completions.create(model=MODEL, messages=QUESTION, tools=[ADD], tool_choice=choice, max_tokens=4, temperature=0)
    call = said.choices[0].message.tool_calls[0]
    assert call.function.name == "add" and call.id
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, tools=[ADD], tool_choice=choice, max_tokens=4,
                                        temperature=0) as stream:
        arguments = "".join(e.arguments_delta for e in stream if e.type == "tool_calls.function.arguments.delta")
    assert arguments == call.function.arguments
    turns = [*QUESTION, said.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "685"}]
    after = client.chat.completions.create(model=MODEL, messages=turns, tools=[ADD], max_tokens=4, temperature=0)
    assert after.usage.prompt_tokens > said.usage.prompt_tokens


def test_responses(client):
    first = client.responses.create(model=MODEL, input=QUESTION[0]["content"], temperature=0)
    assert (first.status, first.output_text) == ("completed", "685")
    second = client.responses.create(model=MODEL, input="What is 5 + 6?", temperature=0, previous_response_id=first.id)
    assert second.previous_response_id == first.id and second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == "685"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=first.id):
        client.responses.retrieve(first.id)


def test_events_of_a_response(client):
    with client.responses.stream(model=MODEL, input=QUESTION[0]["content"], temperature=0) as stream:
        said = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert said == final.output_text == "685"
    assert final.output[0].type == "reasoning" and final.output[0].content[0].text


def test_log_probabilities_of_a_streamed_response(client):
    with client.responses.stream(model=MODEL, input=QUESTION[0]["content"], temperature=0, top_logprobs=20,
                                 include=["message.output_text.logprobs"]) as stream:
        deltas = [t for e in stream if e.type == "response.output_text.delta" for t in e.logprobs]
        final = stream.get_final_response()
    whole = final.output[-1].content[0].logprobs
    assert final.output_text == "".join(t.token for t in whole) == "685"
    assert [(t.token, t.logprob) for t in whole] == [(t.token, t.logprob) for t in deltas]
    assert all(len(t.top_logprobs) == 20 for t in whole)


def test_tools_that_a_server_runs_are_left_out(client):
    add = {"type": "function", "name": "add", "parameters": ADD["function"]["parameters"], "strict": False}
    said = client.responses.create(model=MODEL, input=QUESTION[0]["content"], temperature=0, tools=[add, {"type": "web_search"}],
                                   reasoning={"effort": "low", "summary": "auto"}, store=False)
    assert said.status == "completed" and [t.type for t in said.tools] == ["function"]


def test_usage_in_every_event(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = list(client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, stream=True, stream_options=options))
    counts = [e.usage.completion_tokens for e in events]
    assert counts == sorted(counts) and counts[0] < counts[-1]


def test_fields_of_other_servers(client):
    def tokens(**extra):
        return client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=1, extra_body=extra).usage.prompt_tokens
    assert tokens(chat_template_kwargs={"reasoning_effort": "high"}) == tokens(reasoning={"effort": "high"})
    with pytest.raises(openai.BadRequestError, match="reasoning_effort"):
        tokens(chat_template_kwargs={"reasoning_effort": "most"})
    said = client.chat.completions.create(model=MODEL, messages=QUESTION, extra_body={"grammar": 'root ::= "yes"'}, temperature=0)
    assert said.choices[0].message.content == "yes"


def test_models_and_errors(client):
    assert MODEL in [m.id for m in client.models.list()]
    with pytest.raises(openai.NotFoundError, match="gpt-5"):
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="top_p"):
        client.chat.completions.create(model=MODEL, messages=QUESTION, top_p=9)


class Person(pydantic.BaseModel):
    name: typing.Annotated[str, pydantic.Field(max_length=8)]
    age: typing.Annotated[int, pydantic.Field(ge=0, le=150)]


def ended(ask):
    """The first complete answer of several tries: the model has not learnt to end such texts."""
    for seed in range(20):
        try:
            return ask(seed)
        except openai.LengthFinishReasonError:
            pass
    raise AssertionError("no answer ended")


def test_parse(client):
    said = ended(lambda seed: client.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Person, seed=seed, max_tokens=600))
    assert isinstance(said.choices[0].message.parsed, Person)


def test_a_tool_that_is_strict(client):
    tool = openai.pydantic_function_tool(Person)

    def ask(seed):
        return client.chat.completions.parse(model=MODEL, messages=QUESTION, tools=[tool], tool_choice="required", seed=seed, max_tokens=900)

    call = ended(ask).choices[0].message.tool_calls[0]
    assert call.function.name == "Person" and isinstance(call.function.parsed_arguments, Person)


def test_parse_of_a_response(client):
    for seed in range(20):
        said = client.responses.parse(model=MODEL, input=QUESTION[0]["content"], text_format=Person, extra_body={"seed": seed}, max_output_tokens=600)
        if said.status == "completed":
            break
    assert isinstance(said.output_parsed, Person)
