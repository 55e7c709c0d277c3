export { parseQuota, type ThreadBudget, threadBudget } from '@cflow/runtime-native';
