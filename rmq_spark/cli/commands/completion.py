"""`completion`: the script that lets a shell complete commands, options, topics and groups."""

from __future__ import annotations

import os

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
@click.pass_context
def completion_(context: click.Context, shell: str | None) -> None:
    """Print the script that completes commands, topics and groups.

    Without SHELL, the script is for the shell in $SHELL. Topics and groups come from the STORE on the line.

    \b
    eval "$(rmqlog completion bash)"
    rmqlog completion zsh > ~/.zfunc/_rmqlog
    rmqlog completion fish > ~/.config/fish/completions/rmqlog.fish
    """
    from click.shell_completion import get_completion_class

    from rmq_spark.cli.completion import COMPLETE

    shell = shell or os.path.basename(os.environ.get("SHELL", ""))
    kind = get_completion_class(shell) if shell in _SHELLS else None
    if kind is None:
        raise click.UsageError(f"no completion for the shell {shell!r}; name one of {', '.join(_SHELLS)}")
    script = kind(context.find_root().command, {}, "rmqlog", COMPLETE)
    # not script.source(), which starts a bash to see its version
    click.echo(script.source_template % script.source_vars())
