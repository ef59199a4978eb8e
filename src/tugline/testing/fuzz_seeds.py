"""Small hand-written requests of each API that use most of what it has: what the fuzzer damages."""

from __future__ import annotations

import msgspec

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
_SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "n": {"type": "number"}},
    "required": ["command"],
}


def seeds(dialect: str) -> list[bytes]:
    """Request bodies of that API; none for one that is not ours."""
    made = {"chat": _chat, "anthropic": _anthropic, "responses": _responses, "gemini": _gemini}.get(dialect, list)()
    return [msgspec.json.encode(body) for body in made]


def _chat() -> list[object]:
    call = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command" :  "ls"}'}}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PIXEL}", "detail": "low"}}
    function = {"name": "bash", "description": "Run.", "parameters": _SCHEMA, "strict": True}
    tool = {"type": "function", "function": function}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "And careful."}]},
        {"role": "user", "content": [{"type": "text", "text": "Look "}, image], "name": "ann"},
        {"role": "assistant", "content": None, "reasoning_content": "Think. ", "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "a.txt\n"}, image]},
        {"role": "assistant", "content": "  Done.\n"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": "Go on"},
    ]
    options = {
        "max_completion_tokens": 9, "temperature": 0.7, "top_p": 0.9, "seed": 3, "stop": ["\n\n", "END"],
        "stream": False, "tool_choice": "auto", "parallel_tool_calls": True, "n": 1, "user": "u",
        "metadata": {"a": "b"},
    }  # fmt: skip
    prefill = {"messages": [messages[0], messages[7], messages[5]], "continue_final_message": True}
    return [
        {"model": "policy", "messages": messages, "tools": [tool], **options},
        {"model": "policy", "messages": messages[:3], "stream": True, "stream_options": {"include_usage": True}},
        {"model": "policy", **prefill, "response_format": {"type": "text"}, "chat_template_kwargs": {"x": True}},
    ]


def _anthropic() -> list[object]:
    source = {"type": "base64", "media_type": "image/png", "data": _PIXEL}
    image = {"type": "image", "source": source}
    thinking = {"type": "thinking", "thinking": "Think. ", "signature": "c2lnbmF0dXJl"}
    use = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "ls", "n": 1.0}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a\n"}, image]}
    marked = {"type": "text", "text": "Look ", "cache_control": {"type": "ephemeral"}}
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}
    messages = [
        {"role": "user", "content": [marked, image, {"type": "text", "text": "here"}]},
        {"role": "assistant", "content": [thinking, {"type": "text", "text": "  Look.\n"}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "and?"}, document]},
        {"role": "system", "content": "Mind the time."},
        {
            "role": "assistant",
            "content": [{"type": "redacted_thinking", "data": "b3BhcXVl"}, {"type": "text", "text": "k"}],
        },
        {"role": "user", "content": "Go on"},
    ]
    tools = [
        {"name": "bash", "description": "Run.", "input_schema": _SCHEMA, "cache_control": {"type": "ephemeral"}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
    ]
    options = {
        "max_tokens": 9, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "stop_sequences": ["END"], "stream": False,
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False}, "metadata": {"user_id": "u"},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "service_tier": "auto",
    }  # fmt: skip
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    prefill = [messages[5], {"role": "assistant", "content": "{"}]
    return [
        {"model": "policy", "system": system, "messages": messages, "tools": tools, **options},
        {"model": "policy", "system": "Be brief.", "messages": messages[:3], "max_tokens": 9, "stream": True},
        {"model": "policy", "messages": prefill, "max_tokens": 9, "thinking": {"type": "disabled"}},
    ]


def _responses() -> list[object]:
    image = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{_PIXEL}"}
    reasoning = {
        "type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Think. "}],
        "content": [{"type": "reasoning_text", "text": "Think. "}], "encrypted_content": "b3BhcXVl",
    }  # fmt: skip
    said = {"type": "output_text", "text": "  Look.\n", "annotations": [], "logprobs": []}
    items = [
        {"role": "developer", "content": "And careful."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look "}, image]},
        reasoning,
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [said]},
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "bash",
            "arguments": '{"command" :  "ls"}',
        },
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "a\n"}, image]},
        {"type": "custom_tool_call", "id": "ct_1", "call_id": "call_2", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "ok"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": "Go on"},
    ]
    function = {"type": "function", "name": "bash", "description": "Run.", "parameters": _SCHEMA, "strict": False}
    tools = [
        function,
        {"type": "custom", "name": "patch", "description": "Edit.", "format": {"type": "text"}},
        {"type": "namespace", "name": "files", "description": "Files.", "tools": [function]},
        {"type": "web_search"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ]
    options = {
        "max_output_tokens": 16, "temperature": 0.7, "top_p": 0.9, "store": False, "stream": False,
        "parallel_tool_calls": True, "tool_choice": "auto", "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"}, "text": {"format": {"type": "text"}, "verbosity": "low"},
        "metadata": {"a": "b"}, "prompt_cache_key": "k", "truncation": "disabled",
    }  # fmt: skip
    return [
        {"model": "policy", "instructions": "Be brief.", "input": items, "tools": tools, **options},
        {"model": "policy", "input": items[:2], "stream": True, "stream_options": {"include_obfuscation": False}},
        {"model": "policy", "input": "Hello", "store": True, "tool_choice": {"type": "allowed_tools", "tools": []}},
        {"model": "policy", "input": items[10:], "previous_response_id": "resp_0123"},
    ]


def _gemini() -> list[object]:
    blob = {"inlineData": {"mimeType": "image/png", "data": _PIXEL}}
    call = {"functionCall": {"name": "bash", "args": {"command": "ls", "n": 1.0}, "id": "call_1"}}
    response = {"functionResponse": {"name": "bash", "response": {"output": "a\n"}, "id": "call_1", "parts": [blob]}}
    contents = [
        {"role": "user", "parts": [{"text": "Look "}, blob, {"text": "here"}]},
        {
            "role": "model",
            "parts": [
                {"text": "Think. ", "thought": True},
                {"text": "  Look.\n"},
                {**call, "thoughtSignature": "b3Bh"},
            ],
        },
        {"role": "user", "parts": [response, {"text": "and?"}]},
        {"role": "model", "parts": [{"executableCode": {"language": "PYTHON", "code": "1"}}, {"text": "k"}]},
        {
            "role": "user",
            "parts": [{"fileData": {"mimeType": "text/plain", "fileUri": "https://x/y"}}, {"text": "Go on"}],
        },
    ]
    declared = {"name": "bash", "description": "Run.", "parametersJsonSchema": _SCHEMA}
    typed = {"name": "look", "parameters": {"type": "OBJECT", "properties": {"path": {"type": "STRING"}}}}
    config = {
        "temperature": 0.7, "topP": 0.9, "topK": 5, "maxOutputTokens": 9, "stopSequences": ["END"], "seed": 3,
        "candidateCount": 1, "responseMimeType": "text/plain",
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 100},
    }  # fmt: skip
    whole = {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": contents,
        "tools": [{"functionDeclarations": [declared, typed]}, {"googleSearch": {}}],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "generationConfig": config,
    }
    snake = {"system_instruction": {"parts": [{"text": "Be brief."}]}, "contents": contents[:1]}
    return [whole, snake, {"contents": [{"parts": [{"text": "no role"}]}], "labels": {"a": "b"}}]
