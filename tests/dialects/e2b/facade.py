"""The asynchronous SDK with the synchronous one's face, so that one set of checks runs over both."""

import asyncio
import inspect
import threading


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, awaitable):
        async def wait():
            return await awaitable

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result()


LOOP = Loop()


def plain(value):
    """What a call gave, waited for and given a face where it has methods to wait for."""
    if inspect.isawaitable(value):
        value = LOOP.run(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    module = type(value).__module__
    if module.startswith(("e2b.sandbox_async", "e2b.template_async", "e2b.volume.volume_async", "e2b_code_interpreter.code_interpreter_async")):
        return Face(value)
    return value


def _bare(value):
    return value._it if isinstance(value, Face) else value


class Face:
    """An object whose coroutines are waited for."""

    def __init__(self, it):
        self._it = it

    def __getattr__(self, name):
        value = getattr(self._it, name)
        if inspect.isclass(value) or not callable(value):
            return plain(value)

        def call(*args, **kwargs):
            kwargs = {key: _bare(one) for key, one in kwargs.items()}

            async def within():
                # Some of these look for the running loop before there is anything to wait for.
                result = value(*[_bare(one) for one in args], **kwargs)
                return await result if inspect.isawaitable(result) else result

            return plain(LOOP.run(within()))

        return call

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
