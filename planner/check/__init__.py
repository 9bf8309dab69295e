"""Problems of a configuration file: its rules, its layout, memory, a better plan."""
