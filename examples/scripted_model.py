"""A stand-in for a model: says what was written down for it, turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable


class ScriptedModel(BaseChatModel):
    """Each turn is a tool to use with its arguments, or the last word as text. ``{seen}`` in the last word
    is what the last tool answered, so that it shows whether the tools really worked."""

    turns: list[Any]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[Any, Any]:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        seen = [message for message in messages if isinstance(message, ToolMessage)]
        turn = self.turns[len(seen)]
        if isinstance(turn, str):
            said = AIMessage(content=turn.format(seen=seen[-1].text if seen else ""))
        else:
            tool, arguments = turn
            call = {"name": tool, "args": arguments, "id": f"call_{len(seen)}"}
            said = AIMessage(content="", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=said)])
