import sys

import pytest

from adaterm_bench import cli, methods


@pytest.fixture
def main(capsys, monkeypatch, tmp_path):
    """Exit code and output of a command in this process, errors last; it runs in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    modules, registered = set(sys.modules), methods.list_methods()

    def forget():
        """What files of the user's have left: the next command may find others under their names."""
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]
        for name in set(methods.list_methods()) - set(registered):
            methods.unregister(name)

    def main(*words):
        forget()
        try:
            code = cli.main([str(word) for word in words])
        except SystemExit as exit_:  # of argparse
            code = exit_.code
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    yield main
    forget()
