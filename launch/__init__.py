"""Starting experiments on other machines than a plain one."""
