# Runs code in one namespace, cell after cell, and tells what it shows.
#
# Requests come on standard input: "run ID LANGUAGE BYTES\n" and that many bytes of code. What the code
# writes goes straight to standard output and error; between it stand frames that begin with a byte no
# text has and a name only the host chose. A frame fits into what a pipe takes in one piece, so that
# output of threads and children never cuts one in two.
import ast, base64, builtins, importlib.util, inspect, json, linecache, os, select, signal, sys, traceback, types

MARK = b"\x1e" + sys.argv[2].encode() + b" "
PIECE = 4000
TEXT_MAX = 1 << 20
TRACEBACK_MAX = 1 << 16
REQUESTS = os.dup(0)
OUT, ERR = os.dup(1), os.dup(2)
REPRESENTATIONS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)


class State:
    run = "-"
    busy = False
    messages = 0
    cells = 0
    loop = None


def write(fd, data):
    while data:
        try:
            data = data[os.write(fd, data):]
        except BlockingIOError:
            select.select([], [fd], [])


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def frame(fd, kind, payload=b""):
    State.messages += 1
    while True:
        piece, payload = payload[:PIECE], payload[PIECE:]
        name = b"part" if payload else kind
        head = b"%s %s %d %d\n" % (name, State.run.encode(), State.messages, len(piece))
        write(fd, MARK + head + piece)
        if not payload:
            return


def tell(kind, value):
    flush()
    frame(OUT, kind, json.dumps(value, default=str).encode())


def as_text(data):
    if isinstance(data, (bytes, bytearray)):
        return base64.b64encode(data).decode()
    return data if isinstance(data, str) else json.loads(json.dumps(data, default=str))


def picture(figure):
    import io

    place = io.BytesIO()
    figure.savefig(place, format="png", bbox_inches="tight")
    return base64.b64encode(place.getvalue()).decode()


def is_figure(value):
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


def bundle(value):
    data = {}
    if not isinstance(value, type):
        many = getattr(value, "_repr_mimebundle_", None)
        if callable(many):
            try:
                told = many()
                told = told[0] if isinstance(told, tuple) else told
                data.update({str(kind): as_text(part) for kind, part in dict(told).items()})
            except Exception:
                pass
        for method, kind in REPRESENTATIONS:
            one = getattr(value, method, None)
            if kind not in data and callable(one):
                try:
                    told = one()
                    told = told[0] if isinstance(told, tuple) else told
                    if told is not None:
                        data[kind] = as_text(told)
                except Exception:
                    pass
        if is_figure(value):
            data["image/png"] = picture(value)
            pyplot = sys.modules.get("matplotlib.pyplot")
            if pyplot is not None:
                pyplot.close(value)
    if isinstance(value, (dict, list)) and "application/json" not in data:
        try:
            text = json.dumps(value)
            if len(text) <= TEXT_MAX:
                data["application/json"] = json.loads(text)
        except Exception:
            pass
    if "text/plain" not in data:
        try:
            data["text/plain"] = repr(value)[:TEXT_MAX]
        except Exception as error:
            data["text/plain"] = "<%s that cannot be shown: %s>" % (type(value).__name__, error)
    return data


def display(*values):
    """Shows values as results, in the richest forms they have."""
    for value in values:
        tell(b"result", {"data": bundle(value), "main": False})


def show_figures(*_, **__):
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not hasattr(pyplot, "get_fignums"):
        return
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        if figure.axes or figure.texts or figure.images:
            data = {"image/png": picture(figure), "text/plain": repr(figure)}
            tell(b"result", {"data": data, "main": False})
    pyplot.close("all")


class ShowsFigures:
    """Sees to it that plt.show() shows, whenever the code comes to import it."""

    def find_spec(self, name, path=None, target=None):
        if name != "matplotlib.pyplot" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                module.show = show_figures

            spec.loader.exec_module = exec_module
        return spec


def shell(command):
    """What a line that begins with an exclamation mark does."""
    import subprocess

    flush()
    subprocess.run(command, shell=True)


def without_marks(code):
    """Notebook habits as Python: !command and %pip."""
    lines = []
    for line in code.split("\n"):
        bare = line.lstrip()
        indent = line[: len(line) - len(bare)]
        if bare.startswith("!"):
            line = "%s__import__('builtins').__cove_shell__(%r)" % (indent, bare[1:])
        elif bare.startswith("%pip "):
            line = "%s__import__('builtins').__cove_shell__(%r)" % (indent, sys.executable + " -m " + bare[1:])
        lines.append(line)
    return "\n".join(lines)


FLAGS = getattr(ast, "PyCF_ALLOW_TOP_LEVEL_AWAIT", 0)


def parse(code, name):
    try:
        return compile(code, name, "exec", ast.PyCF_ONLY_AST | FLAGS)
    except SyntaxError:
        plain = without_marks(code)
        if plain == code:
            raise
        return compile(plain, name, "exec", ast.PyCF_ONLY_AST | FLAGS)


def evaluate(tree, name, mode, scope):
    code = compile(tree, name, mode, FLAGS)
    value = eval(code, scope)
    if code.co_flags & inspect.CO_COROUTINE:
        import asyncio

        if State.loop is None:
            State.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(State.loop)
        task = State.loop.create_task(value)
        try:
            value = State.loop.run_until_complete(task)
        except BaseException:
            task.cancel()
            raise
    return value


def execute(code, scope):
    State.cells += 1
    name = "<cell %d>" % State.cells
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    tree = parse(code, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    if tree.body:
        evaluate(tree, name, "exec", scope)
    if last is not None:
        value = evaluate(last, name, "eval", scope)
        if value is not None:
            scope["_"] = value
            tell(b"result", {"data": bundle(value), "main": True})


def failed(error):
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == "<cove>":
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception:
        text = type(error).__name__
    try:
        value = str(error)
    except Exception:
        value = ""
    tell(b"error", {"name": type(error).__name__, "value": value[:TEXT_MAX], "traceback": text[-TRACEBACK_MAX:]})


def interrupted(*_):
    if State.busy:
        raise KeyboardInterrupt


def exactly(count):
    data = b""
    while len(data) < count:
        more = os.read(REQUESTS, count - len(data))
        if not more:
            sys.exit(0)
        data += more
    return data


def request():
    line = b""
    while not line.endswith(b"\n"):
        line += exactly(1)
    _, run, _, count = line.decode().split()
    return run, exactly(int(count)).decode()


def main():
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = open(0, closefd=False)
    sys.argv[:] = [""]
    sys.path.insert(0, "")
    os.environ.setdefault("MPLBACKEND", "Agg")
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    sys.stderr.reconfigure(line_buffering=True)
    sys.meta_path.insert(0, ShowsFigures())
    module = types.ModuleType("__main__")
    module.__builtins__ = builtins
    module.display = display
    builtins.__cove_shell__ = shell
    sys.modules["__main__"] = module
    signal.signal(signal.SIGINT, interrupted)
    while True:
        State.run, code = request()
        for fd in (OUT, ERR):
            frame(fd, b"begin")
        try:
            try:
                State.busy = True
                try:
                    execute(code, module.__dict__)
                    show_figures()
                finally:
                    State.busy = False
            except BaseException as error:
                failed(error)
        except KeyboardInterrupt:
            State.busy = False
        flush()
        frame(ERR, b"end")
        frame(OUT, b"end", b"{}")


main()
