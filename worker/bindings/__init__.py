"""How single engines' libraries are called: what is theirs and not the engine interface's."""
