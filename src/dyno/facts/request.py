"""A request as wanted: a prompt, its length, and the tokens asked for."""

import msgspec


class Request(msgspec.Struct, frozen=True):
    prompt: str | list[int]  # text, or token ids where the server takes them
    prompt_tokens: int  # by the workload's tokenizer, special tokens included
    output_tokens: int  # asked for as the server's max_tokens
