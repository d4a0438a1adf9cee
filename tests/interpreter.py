"""Triton's interpreter, sooner done."""


def patch_once():
    """Let the interpreter patch Triton's language once for a launch, not in every call of a function in it.

    It takes most of its time for that, though a call finds everything patched by the launch already.
    """
    from triton.runtime import interpreter

    patch = getattr(interpreter, "_patch_lang", None)
    if patch is None or hasattr(patch, "done"):
        return
    done = set()  # the modules of functions in this launch

    def patch_lang(function):
        if id(function.__globals__) in done:
            return None  # which only a launch asks for, and it comes first
        scope = patch(function)
        if not done and hasattr(scope, "restore"):
            restore = scope.restore
            scope.restore = lambda: (done.clear(), restore())
        done.add(id(function.__globals__))
        return scope

    patch_lang.done = done
    interpreter._patch_lang = patch_lang
