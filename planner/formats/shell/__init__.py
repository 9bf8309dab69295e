"""Shell text: the words of scripts and files of arguments, with their places."""
